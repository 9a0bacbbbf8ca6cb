"""Cells of HBase: decoded, remembered, folded to rows as HBase reads them."""
