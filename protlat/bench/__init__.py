"""What this computer could do at best, and how near a model comes to it."""
