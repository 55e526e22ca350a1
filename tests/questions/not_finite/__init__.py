"""not finite"""
