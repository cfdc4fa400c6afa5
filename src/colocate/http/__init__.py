"""HTTP servers of our processes: connections are bounded before their callers are known. No paths here."""
