"""The page: feed turns a run into messages, page lays the page out, scripts and styles in static/ draw it."""
