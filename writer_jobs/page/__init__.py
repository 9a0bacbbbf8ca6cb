"""Web pages as text: one style, and the parts that `sluice ui` and the saved health page share."""
