"""Programs whose peak of memory has a cause that a hint names, one a file, and healthy programs beside them."""
