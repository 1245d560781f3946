"""The page: view folds events into what it shows, page lays it out, stage.js and stage.css draw it."""
