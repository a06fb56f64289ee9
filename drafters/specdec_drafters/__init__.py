"""The drafters that come with specdec, one module each; `plugin` announces them.

They use nothing but the public face of `specdec_core`, as any other distribution's would.
"""
