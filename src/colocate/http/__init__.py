"""HTTP servers of our processes: connections are bounded before anybody knows whose they are. No paths here."""
