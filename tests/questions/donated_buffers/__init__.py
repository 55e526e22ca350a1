"""A graph that is kept over a compiled region whose backward frees its buffers."""
