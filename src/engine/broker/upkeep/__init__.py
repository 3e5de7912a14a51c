"""What runs beside traffic: retention, orphans, idle segments, load reports, checks of a directory."""
