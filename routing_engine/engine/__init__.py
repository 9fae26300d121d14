"""The torch service that answers as an expert and holds the second routing stage."""
