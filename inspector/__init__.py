"""What the forward left: the graph, creation times, saved tensors, source lines, pictures. Needs torch alone."""
