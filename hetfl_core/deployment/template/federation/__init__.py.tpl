"""What is trained (`methods`), on what (`data`), and Flower's two apps."""
