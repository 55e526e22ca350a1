"""The graph of a forward: tasks, saved tensors, source lines, pictures. Depends on torch only."""
