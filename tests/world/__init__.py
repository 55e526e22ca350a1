"""What verbs leave behind in the world of their user: nothing."""
