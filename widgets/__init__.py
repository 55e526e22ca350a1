"""What a person sees in a notebook. Only this package may need Jupyter."""
