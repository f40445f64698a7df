"""Growth: from a workload to certified rules, stage by stage."""
