"""Programs: operators, terms, model graphs, number systems, block graphs, text and ONNX input and output."""
