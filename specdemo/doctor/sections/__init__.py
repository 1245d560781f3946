"""A module for each section of the doctor. `trials()` says what the section tries."""
