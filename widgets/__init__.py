"""The user interfaces: deck, pages, prompt and magics. Only this package may import Jupyter's libraries."""
