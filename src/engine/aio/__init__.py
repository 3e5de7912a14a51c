"""The asyncio pieces that the standard library lacks: portal, semaphores, memory limits, supervisors, workers."""
