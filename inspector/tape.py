"""What a capture wrote down."""
