"""Pictures of a layout: text and SVG. They take grids and splits."""
