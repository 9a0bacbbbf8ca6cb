package io.deltasluice.storage;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;

/** Calls public methods by name, because they differ between the supported releases of their libraries. */
final class ByName {
  private ByName() {}

  /**
   * Calls a method by its name, and rethrows its exceptions.
   *
   * @throws NoSuchMethodError the target has no method of this name that accepts the arguments
   */
  static Object call(Object target, String name, Object... arguments) {
    Method method = find(target.getClass(), name, arguments);
    if (method == null) {
      throw new NoSuchMethodError(target.getClass().getName() + "." + name);
    }
    return invoke(target, method, arguments);
  }

  /** Invokes a method, and rethrows its exceptions. Scala's methods throw checked exceptions without declaring them. */
  static Object invoke(Object target, Method method, Object... arguments) {
    try {
      return method.invoke(target, arguments);
    } catch (InvocationTargetException e) {
      throw ByName.<RuntimeException>throwUnchecked(e.getCause());
    } catch (IllegalAccessException e) {
      throw new IllegalAccessError(method + ": " + e.getMessage());
    }
  }

  /** Throws any exception as if it were unchecked. */
  @SuppressWarnings("unchecked")
  static <E extends Throwable> E throwUnchecked(Throwable error) throws E {
    throw (E) error;
  }

  /** Calls the first of these static methods that exists. The methods take no arguments. */
  static Object callStatic(Class<?> type, String... names) {
    for (String name : names) {
      Method method = find(type, name);
      if (method != null) {
        return invoke(null, method);
      }
    }
    throw new NoSuchMethodError(type.getName() + "." + names[0]);
  }

  /** Returns a public method of this name that accepts the arguments; null if there is none. */
  static Method find(Class<?> type, String name, Object... arguments) {
    for (Method method : type.getMethods()) {
      if (method.getName().equals(name) && accepts(method.getParameterTypes(), arguments)) {
        return method;
      }
    }
    return null;
  }

  private static boolean accepts(Class<?>[] types, Object[] arguments) {
    if (types.length != arguments.length) {
      return false;
    }
    for (int i = 0; i < types.length; i++) {
      Class<?> type = types[i] == long.class ? Long.class : types[i] == boolean.class ? Boolean.class : types[i];
      if (arguments[i] != null && !type.isInstance(arguments[i])) {
        return false;
      }
    }
    return true;
  }

  /** Returns whether an object is an instance of a class that some releases do not have. */
  static boolean isInstance(Object object, String className) {
    try {
      return Class.forName(className, false, object.getClass().getClassLoader()).isInstance(object);
    } catch (ClassNotFoundException e) {
      return false;
    }
  }
}
