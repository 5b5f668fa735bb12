"""report.json to report.html: view model, SVG charts, template. Pure; reads no service."""
