"""What a program is: operators, terms, model graphs, number systems, text and ONNX input and output."""
