"""tapehead: a debugger for PyTorch's backward pass that you can look at."""

from .inspector.capture import capture
from .inspector.graph import Edge, Graph, Task, graph

__all__ = ["Edge", "Graph", "Task", "capture", "graph"]
