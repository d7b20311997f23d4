"""Pictures of a distribution, as text and as SVG, from its grid and its splits."""
