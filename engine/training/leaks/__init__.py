"""Graphs and tensors of earlier steps that stay alive, and their holders.

May import: everything below training, and the observers' interface.
"""
