"""other gradients"""
