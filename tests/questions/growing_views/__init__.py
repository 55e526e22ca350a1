"""growing views"""
