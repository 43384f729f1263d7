"""Small published models that package registries carry: compressed as recommended, and measured on their own tasks."""
