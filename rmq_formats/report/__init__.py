"""Reports as pages: one self-contained HTML file each, for a browser and for paper."""
