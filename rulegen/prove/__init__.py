"""Certification: from two programs to a certificate.

The prover (:mod:`rulegen.prove.prover`) finds a proof in an e-graph; Z3 (:mod:`rulegen.prove.second`) is the second,
independent checker of a finished rule. Symbols in sample types stand for distinct sizes; attributes (Split's sizes) may use
them. What a proof needs beyond the programs being well-typed comes back as conditions of the rule.
"""
