"""Source lines of the forward, resolved only when somebody asks."""
