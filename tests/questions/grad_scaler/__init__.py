"""A GradScaler that meets no gradient."""
