"""How good a ranking is: measures, significance, protocols, category overlap."""
