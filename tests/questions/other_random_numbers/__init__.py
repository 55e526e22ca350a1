"""other random numbers"""
