"""What the forward left: the graph, its creation times, saved tensors and source lines, and pictures of it. Needs torch alone."""
