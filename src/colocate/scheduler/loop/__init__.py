"""What runs beside the server: the table kept in step, pods judged, decisions kept, taints written."""
