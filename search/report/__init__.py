"""The report of a run: `frames` reads its folder, `page` makes a file of it, `observer` keeps that fresh;
`fresh_page` keeps those of comparisons and campaigns fresh."""
