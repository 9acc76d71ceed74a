"""Quality gates: what two arms' sessions prove, at whatever look somebody takes. Decides only."""
