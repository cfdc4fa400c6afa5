"""One module per process, which joins the rooms. No decisions and no protocols here."""
