"""The page, in four rooms: page/ (controls, links, the API), front/ (what a request passes), runs/ (whose
turn it is, and what pages follow and open) and view/ (a run as messages, and words). Scripts and styles in
static/ have the same rooms, and others: traces/ (opening files), lesson/, and keep/ (saving)."""
