"""Reports for people: one HTML file that shows what a run or a comparison found, without any network."""
