"""The graph that a forward builds: its tasks, saved tensors, source lines and pictures. Imports only torch."""
