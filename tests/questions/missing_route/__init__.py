"""A parameter that an optimizer holds gets no gradient, and the loop tells why."""
