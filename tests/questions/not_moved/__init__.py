"""Parameters that do not change although they have a gradient and a rate, and losses that do not."""
