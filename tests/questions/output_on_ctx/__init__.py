"""output on ctx"""
