"""Judgments from clicks and from people."""
