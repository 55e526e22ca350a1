"""the route from the loss to a parameter"""
